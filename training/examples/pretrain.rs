//! `pretrain CONFIG.toml OUT`: what `hanzod pretrain` does, without the node.

use gym_training::pretrain::{PretrainConfig, observer, run};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(config), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("usage: pretrain CONFIG.toml OUT".into());
    };
    let config = PretrainConfig::load(Path::new(&config))?;
    let summary = run(&config, Path::new(&out), &mut observer())?;
    eprintln!("{summary:?}");
    Ok(())
}
