//! GYM.
