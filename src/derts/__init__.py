"""derts: choose the tasks that are worth training on."""
