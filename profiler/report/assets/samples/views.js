// Trees to draw: callers first, or inverted. Both are trees of boxes that are made when they
// are needed, so that only what is wide enough to be seen costs anything.

class Box {
  constructor(view, parent, fn, members, total, self) {
    this.view = view;
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.fn = fn;
    this.total = total;
    this.self = self;
    /**
     * Nodes of the shape that are drawn as this box, with their samples; where leaves come first, those
     * are the samples that end in `leaf`, else those of all below.
     */
    this.members = members;
    this.known = null;
  }

  get children() {
    this.known ??= this.view.childrenOf(this);
    return this.known;
  }

  /** The member with most samples stands for the box where only one can be shown. */
  get mainNode() {
    return this.members.reduce((best, member) => (member.samples > best.samples ? member : best)).node;
  }

  /** Samples of this box in other sums of the same shape. */
  samplesIn(sums) {
    return this.members.reduce((all, { node, leaf }) => all + (leaf === null ? sums.total[node] : sums.self[leaf]), 0);
  }

  /** From the root to this box. */
  get path() {
    const path = [];
    for (let box = this; box; box = box.parent) path.unshift(box);
    return path;
  }
}

/** The box that is reached from a root by functions' numbers, or as far as there are such boxes. */
export function boxAt(root, numbers) {
  let box = root;
  for (const number of numbers) {
    const next = box.children.find(({ fn }) => fn.index === number);
    if (!next) break;
    box = next;
  }
  return box;
}

class View {
  /** Boxes are as large as `sums` say, and there is one for whatever is in `present`. */
  constructor(profile, shape, sums, present = sums) {
    this.profile = profile;
    this.nodes = shape.nodes;
    this.sums = sums;
    this.present = present;
  }

  fnOf(node) {
    return this.profile.functions[this.nodes.fn[node]];
  }

  /** One box for each function among the members. */
  boxes(parent, members, selfOf) {
    const byFunction = new Map();
    for (const member of members) {
      const fn = this.nodes.fn[member.node];
      const known = byFunction.get(fn);
      if (known) known.push(member);
      else byFunction.set(fn, [member]);
    }
    return [...byFunction.values()].map((group) => {
      const sum = (of) => group.reduce((all, member) => all + of(member), 0);
      return new Box(this, parent, this.fnOf(group[0].node), group, sum((member) => member.samples), sum(selfOf));
    });
  }
}

/** Callers first: a box's children are its callees. */
export class CallersFirst extends View {
  get root() {
    const members = [{ node: 0, samples: this.sums.all, leaf: null }];
    return new Box(this, null, this.fnOf(0), members, this.sums.all, this.sums.self[0]);
  }

  childrenOf(box) {
    const { end } = this.nodes;
    const members = [];
    for (const { node } of box.members) {
      for (let child = node + 1; child < end[node]; child = end[child]) {
        if (this.present.total[child] > 0) members.push({ node: child, samples: this.sums.total[child], leaf: null });
      }
    }
    return this.boxes(box, members, (member) => this.sums.self[member.node]);
  }
}

/** Inverted: below the root are the functions that were running, and a box's children are its callers. */
export class LeavesFirst extends View {
  get root() {
    const members = [];
    this.present.self.forEach((samples, node) => {
      if (samples > 0 && node > 0) members.push({ node, samples: this.sums.self[node], leaf: node });
    });
    return new Box(this, null, this.fnOf(0), members, this.sums.all, 0);
  }

  childrenOf(box) {
    const { parent } = this.nodes;
    const callers = box.parent ? box.members.map(({ node, samples, leaf }) => ({ node: parent[node], samples, leaf })) : box.members;
    const members = callers.filter((member) => member.node !== 0);
    const children = this.boxes(box, members, (member) => (box.parent ? 0 : member.samples));
    return children.sort((a, b) => b.total - a.total);
  }
}

/** The box that shows the same functions in another view, as far down as that has them. */
export function followPath(root, path) {
  let box = root;
  for (const step of path.slice(1)) {
    const next = box.children.find((child) => child.fn === step.fn);
    if (!next) break;
    box = next;
  }
  return box;
}
