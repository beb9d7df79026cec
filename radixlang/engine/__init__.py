"""Where the two columns are put together: the loop, and how it starts in a process or in a thread."""
