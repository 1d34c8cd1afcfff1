// Runs an emitted network from Rust, on inputs of ones at its first shape.
//   mononn compile model.onnx --emit static -o libnetwork.a
//   rustc -O use.rs -L . && ./use
use std::ffi::{c_char, c_void, CStr};

#[repr(C)]
struct Tensor {
    name: *const c_char,
    dtype: *const c_char,
    rank: u32,
    shape: *const u64,
    bytes: u64,
}

#[repr(C)]
struct Options {
    threads: u32,
    flags: u32,
    weights: *const c_char,
}

#[link(name = "network", kind = "static")]
extern "C" {
    fn network_input(shape: u32, index: u32) -> *const Tensor;
    fn network_output(shape: u32, index: u32) -> *const Tensor;
    fn network_create(options: *const Options, problem: *mut *const c_char) -> *mut c_void;
    fn network_run(session: *mut c_void, shape: u32, inputs: *const *const c_void, outputs: *const *mut c_void) -> u64;
    fn network_problem(error: u64) -> *const c_char;
    fn network_destroy(session: *mut c_void);
}

/// Words of eight bytes (aligned for every type) for all inputs or all outputs at shape 0, filled with ones of their type.
fn memory(describe: unsafe extern "C" fn(u32, u32) -> *const Tensor) -> Vec<Vec<u64>> {
    let mut found = Vec::new();
    while let Some(tensor) = unsafe { describe(0, found.len() as u32).as_ref() } {
        let one = match unsafe { CStr::from_ptr(tensor.dtype) }.to_bytes() {
            b"float32" => (1.0f32.to_bits() as u64) << 32 | 1.0f32.to_bits() as u64,
            b"int64" => 1,
            _ => 0,
        };
        found.push(vec![one; (tensor.bytes as usize + 7) / 8]);
    }
    found
}

fn text(words: *const c_char) -> String {
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn main() {
    let mut problem: *const c_char = std::ptr::null();
    let session = unsafe { network_create(std::ptr::null(), &mut problem) };
    if session.is_null() {
        eprintln!("{}", text(problem));
        std::process::exit(2);
    }
    let inputs = memory(network_input);
    let mut outputs = memory(network_output);
    let sent: Vec<*const c_void> = inputs.iter().map(|i| i.as_ptr() as *const c_void).collect();
    let received: Vec<*mut c_void> = outputs.iter_mut().map(|o| o.as_mut_ptr() as *mut c_void).collect();
    let error = unsafe { network_run(session, 0, sent.as_ptr(), received.as_ptr()) };
    if error != 0 {
        eprintln!("{}", text(unsafe { network_problem(error) }));
        std::process::exit(1);
    }
    let first = received[0] as *const f32;
    let values: Vec<String> = (0..4).map(|i| unsafe { (*first.add(i)).to_string() }).collect();
    println!("shape 0 {}: {}", text(unsafe { (*network_output(0, 0)).name }), values.join(" "));
    unsafe { network_destroy(session) };
}
