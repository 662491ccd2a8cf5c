"""A replay of job streams over measured profiles: the policies that the service uses, in virtual time."""
