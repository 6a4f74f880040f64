"""PostgreSQL itself: connections to it, its transactions, its texts, and its troubles in words."""
