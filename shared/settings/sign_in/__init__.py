"""The settings of sign-in: the trusted sources of users' names, and the roles of users."""
