//! The program `testnet`.

fn main() -> std::process::ExitCode {
    testnet::main_from(std::env::args_os().collect())
}
