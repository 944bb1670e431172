//! The program as its users meet it: real processes, one test binary.

mod network;
mod support;
mod training;
mod transfer;
