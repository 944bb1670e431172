//! The program `hanzod`.

fn main() -> std::process::ExitCode {
    hanzod::main_from(std::env::args_os())
}
