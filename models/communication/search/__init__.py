"""Which of the programs that passes reach is best, in how many chunks and in which order: one wide problem of all."""
