//! What a process in the jail can do and what it cannot, each wall by itself and all together; and that it can without the jail.

mod walls;
