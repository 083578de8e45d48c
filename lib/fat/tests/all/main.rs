//! Files on a simulated disk, which has latencies, overtaking requests, faults and power cuts.

mod changes;
mod contract;
mod damaged;
mod disk;
mod power;
mod reads;
mod tools;
