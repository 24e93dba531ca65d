//! Compiles `proto/` in pure Rust, so that no `protoc` is needed on the machine.

use std::error::Error;

const PROTO: &str = "../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = [
        "rankway/v1/kv.proto",
        "rankway/v1/fleet.proto",
        "rankway/v1/affinity.proto",
        "rankway/store/v1/index.proto",
    ];
    let descriptors = protox::compile(files, [PROTO])?;
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
