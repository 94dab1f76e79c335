"""What keeps a claim alive in a process: clocks, threads, forks, signals; imports no queue and no driver."""
