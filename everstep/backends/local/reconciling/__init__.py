"""What is done for pods until they are as the books want them."""
