"""Makes private values from public descriptions of their formats, and decides if one survives the filter."""
