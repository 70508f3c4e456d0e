"""What a fleet of real servers costs, loses and repairs."""
