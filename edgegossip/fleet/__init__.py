"""A fleet of boards that know one another: its authority, certificates and revocations. For the
laptop."""
