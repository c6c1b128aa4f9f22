"""Branch and bound over boxes, a batch of trees at a time."""
