"""The shared language of conversations: what they are, how they become ids, and which ids are supervised."""
