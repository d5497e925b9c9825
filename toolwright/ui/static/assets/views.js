// Every view of the page, in the order of the tabs. A new view is a module in views/ and a line here.
//
// A view is {name, title, View} and, where it needs them: `run` (it shows a run), `many` (it shows all chosen runs),
// `needs` (what a run must have, of `has` in its summary), `tab` (it belongs to another view's tab), `key` (opens it).
// `View` gets {route, live, chosen, run}: the address, what the server told, the chosen runs' summaries, the first of them.
import { attempt } from "./views/attempt.js";
import { attempts } from "./views/attempts.js";
import { configuration } from "./views/configuration.js";
import { curves } from "./views/curves.js";
import { distributions } from "./views/distributions.js";
import { evaluations } from "./views/evaluations.js";
import { failures } from "./views/failures.js";
import { group } from "./views/group.js";
import { runs } from "./views/runs.js";
import { searches } from "./views/searches.js";
import { system } from "./views/system.js";
import { task } from "./views/task.js";
import { tasks } from "./views/tasks.js";
import { timeline } from "./views/timeline.js";

export const VIEWS = [runs, curves, attempts, tasks, distributions, timeline, evaluations, searches, failures, configuration, system, attempt, group, task];
