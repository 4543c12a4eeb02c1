"""The manager: registers, places, and brings log streams back after restarts."""
