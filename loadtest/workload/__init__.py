"""What is asked: lengths and text of prompts."""
