"""What is an operator of a captured graph: a layer whose weight gradient can wait, by which formula; does it learn?"""
