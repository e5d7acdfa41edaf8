"""Commands about machines: checked, rehearsed, isolated, cleaned."""
