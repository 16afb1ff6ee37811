//! The checks of the seeded tests, for the fuzz targets.

#[path = "../../tests/checks/mod.rs"]
pub mod checks;
