"""What is done about a fault: what it is called, which level answers it, what that means."""
