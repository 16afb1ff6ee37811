//! placeholder
use crate::campaign::{FolderError, RunFolder, RunResult};
pub fn page(_: &RunFolder, _: &RunResult) -> Result<String, FolderError> { Ok(String::new()) }
