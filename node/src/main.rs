//! GYM.
fn main() {}
