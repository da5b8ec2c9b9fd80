import './extras/backlog';
import './extras/older';
import './tag';
