"""Programs as users write them. They are not part of the wheel."""
