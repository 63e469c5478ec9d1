"""Complex tensors: two real tensors, and functions of them."""
