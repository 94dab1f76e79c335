"""What a store keeps, what it answers, and the rules it follows. Imports no queue and no driver."""
