"""What does a pipeline run: where is the model cut, what do its stages cost, and which schedule is best?"""
