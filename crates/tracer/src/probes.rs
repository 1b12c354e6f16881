//! Which programs there are and what they attach to.
