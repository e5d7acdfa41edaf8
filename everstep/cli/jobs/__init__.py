"""Commands about jobs: asked, told, followed, listed."""
