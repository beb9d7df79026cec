"""The only place that imports both columns: the loop, and how it starts in a process or in a thread."""
