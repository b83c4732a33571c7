"""PyIceberg's tables on format V3, encrypted."""
