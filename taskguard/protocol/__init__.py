"""What a store keeps, what it answers, and by which rules; imports no queue and no driver."""
