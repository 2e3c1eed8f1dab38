"""The settings of sign-in: who may say who a user is, and what each user may do."""
