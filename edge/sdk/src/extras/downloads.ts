// downloads sends FileDownload for each click on a link to a file of GA4's list.

import { send, start, text } from './extra';
import { linkFields, watchLinks } from './links';

const FILE =
  /\.(pdf|xlsx?|docx?|txt|rtf|csv|exe|key|pp(?:s|tx?)|7z|pkg|rar|gz|zip|avi|mov|mp4|mpe?g|wmv|midi?|mp3|wav|wma)$/i;

start('downloads', () => watchLinks((to, link) => {
  const file = FILE.exec(to.pathname);
  if (!file) return;
  send('FileDownload', Object.assign(linkFields(to, link), {
    link_text: text(link),
    file_name: to.pathname,
    file_extension: file[1].toLowerCase(),
  }));
}));
