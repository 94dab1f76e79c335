"""What keeps a claim alive in a process: clocks, threads, forks, signals. Imports no queue and no driver."""
