"""What a controller in a cluster costs."""
