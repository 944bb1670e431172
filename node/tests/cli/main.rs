//! The program as its users meet it: real processes, one test binary.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod bad_content;
mod content;
mod content_killed;
mod delta;
mod gateway;
mod gateway_car;
mod hub;
mod killed;
mod limits;
mod network;
mod publishing;
mod support;
mod training;
mod transfer;
#[path = "../content/wicked.rs"]
mod wicked;
