//! What the local bus promises beyond [`bus::Bus`]: durability, recovery, bounds, and one process at a time.

mod crash;
mod damage;
mod folder;
mod full_disk;
mod retention;
mod steps;
mod table_files;
