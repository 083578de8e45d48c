// Places of the columns of each type of track, as profiler/report/src/trace/page/kinds.rs writes them, and numbers of causes.

export const TASK = { task: 0, core: 1, remarks: 2, id: 3, by: 4, byTime: 5, cause: 6, waker: 7, any: 8 };
export const REQUEST = { id: 0, bytes: 1, depth: 2, task: 3, remarks: 4 };
export const SEGMENT = { connection: 0, port: 1, bytes: 2 };
export const SPAN = { id: 0, level: 1, parent: 2, parentTime: 3, task: 4, path: 5, remarks: 6 };
export const CORE = { task: 0, remarks: 1, device: 2, span: 3, spanTime: 4 };

/** What ends a wait. */
export const CAUSE = { task: 1, request: 2, segment: 3, timer: 4, interrupt: 5 };
