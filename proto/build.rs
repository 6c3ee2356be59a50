//! Compiles the contract without an external `protoc`.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "systole/v1/task.proto",
        "systole/v1/runner.proto",
        "systole/v1/access.proto",
        "systole/v1/cluster.proto",
        "systole/v1/job.proto",
        "systole/v1/lease.proto",
        "systole/v1/alarm.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("systole.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
