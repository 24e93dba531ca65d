//! What the local bus promises beyond [`bus::Bus`]: durability, recovery, bounds, and one process at a time.
//!
//! The modules say `cfg(test)` so that clippy knows their helpers for parts of tests.

#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod folder;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod table_files;
