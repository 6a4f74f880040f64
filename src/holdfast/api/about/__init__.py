"""What the server says about itself: health, models, capabilities, metrics, the API's description (S)."""
