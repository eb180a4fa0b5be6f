// The pages, in the order of the navigation. A new one is added here.

import { pages as overview } from "./pages/overview.js";
import { pages as topics } from "./pages/topics.js";
import { pages as topic } from "./pages/topic.js";
import { pages as groups } from "./pages/groups.js";
import { pages as queues } from "./pages/queues.js";
import { pages as captures } from "./pages/captures.js";
import { pages as pipelines } from "./pages/pipelines.js";
import { pages as dashboards } from "./pages/dashboards.js";

export const PAGES = [
  ...overview,
  ...topics,
  ...topic,
  ...groups,
  ...queues,
  ...captures,
  ...pipelines,
  ...dashboards,
];
